"""`make web`: a page that trains networks in the browser, and its server."""
