"""Reading an inventory through ansible-inventory."""
