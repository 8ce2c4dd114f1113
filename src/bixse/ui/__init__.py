"""The pages of `bixse ui` over the files of a run folder, served on this machine."""
