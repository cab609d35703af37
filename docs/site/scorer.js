// How search results are ordered: Sphinx's own scores, but what users need comes before what
// developers of Throng need.
var Scorer = {
  score: ([page, , , , score]) =>
    /^(decisions\/|architecture|contributing|changelog|lexicon|reference\/(formats|frozen-state))/.test(page) ? score - 20 : score,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
