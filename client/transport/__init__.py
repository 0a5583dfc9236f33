"""How bytes reach a server: sockets, queue pairs and their lanes, registered memory, and the choice of a transport."""
