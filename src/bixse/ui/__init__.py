"""`bixse ui`: pages for people over the files of a run folder, served on this machine."""
