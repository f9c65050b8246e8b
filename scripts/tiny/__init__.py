"""How the embedded voice is made: sentences, teacher, codec and policy training."""
