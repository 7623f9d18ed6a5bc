"""Arguments of the command line: their parser, and the options of requests that several commands share."""
