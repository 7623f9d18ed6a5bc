"""The parser of the command line, and options that several commands share."""
