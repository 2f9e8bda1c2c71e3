/* Runs before the page is drawn, so that a chosen theme does not flash in. Without a choice the system's is used. */
"use strict";
(function () {
    let chosen = null;
    try {
        chosen = localStorage.getItem("theme");
    } catch {
        /* storage may be forbidden; then nothing is remembered */
    }
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
