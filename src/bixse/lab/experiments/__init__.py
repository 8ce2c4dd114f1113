"""Training runs that belong together: several arms with several seeds, resumable one by one."""
