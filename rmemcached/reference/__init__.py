"""What is said of the commands outside of them: manual pages, completion in shells, and a page of the documentation."""
