// Blocks that are wider than the page scroll; with `tabindex`, so that keys can scroll them.
for (const block of document.querySelectorAll(".highlight pre, .table-wrapper, .toc-scroll, .sidebar-scroll")) {
  block.tabIndex = 0;
}
