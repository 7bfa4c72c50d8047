# A package, not a mere folder: flair installs one called tests, which would hide it from the workers of tests/ranks.
