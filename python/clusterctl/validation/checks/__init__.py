"""The checks of a validation, one module each: what to launch and how to judge its output, without I/O."""
