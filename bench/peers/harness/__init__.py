"""Measures push servers side by side: the same load, the same generator, one after another.

| module | what it is |
|---|---|
| `servers` | starts and ends a peer by its `start` script |
| `load` | the load, run by `throng flood`, and the measurements of a run |
| `results` | all runs as saved in JSON, their medians and ratios |
| `document` | the page of tables: `page.template`, filled in |
| `pictures` | which charts it has; drawn by `bench/charts` |
"""
