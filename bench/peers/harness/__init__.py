"""Measures push servers side by side: the same load, the same generator, one after the other.

| module | what it is |
|---|---|
| `servers` | starts and ends a peer by its `start` script |
| `load` | the load, run by `throng flood`, and the figures of a run |
| `results` | all runs, their medians and ratios, as they are kept in JSON |
| `document` | the page of tables: `page.template`, filled in |
| `pictures` | which charts it has; drawn by `bench/charts` |
"""
