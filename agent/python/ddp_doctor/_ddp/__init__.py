"""Records what DistributedDataParallel and the training loop do."""
