"""The engines of a plan on cores of this host: started, and one OpenAI-compatible endpoint that balances over them."""
