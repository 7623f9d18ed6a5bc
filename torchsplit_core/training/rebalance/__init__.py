"""What a run changes about itself while it goes on: ranks' samples and stages' blocks by speed, passes by memory."""
