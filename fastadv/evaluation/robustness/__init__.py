"""How far sentence vectors move, and how rankings change, when texts are edited: no attack, no labels."""
