"""Records the calls of torch.distributed."""
