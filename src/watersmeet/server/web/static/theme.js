// Sets the chosen theme before anything is drawn; without one the system's applies.
(() => {
  const chosen = localStorage.getItem("watersmeet.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
