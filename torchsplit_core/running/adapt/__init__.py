"""What a run changes about itself while it goes on: each rank's samples by its speed, the size of a pass by memory."""
