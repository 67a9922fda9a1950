// Before anything is drawn: the theme that was chosen, or none, for that of the system.
(() => {
  const chosen = localStorage.getItem("watersmeet.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
