"""`make web`: a page on which the network of `make demo` learns inside the browser, and the server of that page."""
