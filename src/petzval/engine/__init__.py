"""From a checkpoint's name and a device to what runs: every wrapper applied in one readable place."""
