"""One module a page, named in `bixse.ui.app.PAGES`; its templates have its name."""
