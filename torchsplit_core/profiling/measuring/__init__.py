"""Points measured on a device, in a child process of their own."""
