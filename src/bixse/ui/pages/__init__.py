"""The pages: a module lists its own in `PAGES`; templates have the name of their page."""
