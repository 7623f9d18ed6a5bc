"""The changes of a day as entries of schedulers."""
