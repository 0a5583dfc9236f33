"""Documentation of the commands, made from their parsers: manual pages, shell completion, and a page of the docs."""
