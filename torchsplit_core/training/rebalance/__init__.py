"""What a run changes while it trains: ranks' samples and stages' blocks by speed, micro-batches by memory."""
