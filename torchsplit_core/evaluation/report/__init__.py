"""Reports of an evaluation: tables, charts, an HTML page, a document."""
