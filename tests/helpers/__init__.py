"""What several tests need: servers to break against, judges and models that are known beforehand."""
