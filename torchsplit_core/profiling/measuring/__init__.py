"""Points measured on a device, in a child process."""
