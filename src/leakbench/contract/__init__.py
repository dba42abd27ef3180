"""What a component of one's own has to keep to: small checks, each with a name and a sentence of what is wrong."""
