"""An evaluation as people read it: tables, pictures, a page of HTML, a document."""
