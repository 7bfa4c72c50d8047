"""Small changes of a text: typing errors and synonyms, which keep its meaning, and flips, which do not."""
