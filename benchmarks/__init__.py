"""What "fast" means here, as ratios measured inside one run; see `__main__.py`."""
