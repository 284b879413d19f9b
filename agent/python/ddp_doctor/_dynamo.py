"""Keeps torch.compile from tracing this package, whose functions run between those that it compiles."""


def patch(module, late):
    # By version, one of the modules has the function.
    add = getattr(module, "add", None)
    if add is not None:
        add(__package__)
