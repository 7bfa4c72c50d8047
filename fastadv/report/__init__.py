"""One page of runs, evaluations and attacks: `fastadv.report.write` writes it, `sources` says what it is made of."""
