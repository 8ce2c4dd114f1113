"""The pages: each module lists its pages in `PAGES`, and a template has the name of its page."""
