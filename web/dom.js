/* Small helpers. Text always goes in as text, never as markup. */

export const byId = (id) => document.getElementById(id);

/* make("p", {className: "quiet"}, "words", anotherNode) */
export function make(tag, properties = {}, ...children) {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
}

export function copyButton(text) {
    const button = make("button", {type: "button", className: "plain"}, "Copy");
    button.addEventListener("click", async () => {
        try {
            await navigator.clipboard.writeText(text());
            button.textContent = "Copied";
        } catch {
            button.textContent = "Not allowed"; /* browsers give the clipboard to https and loopback pages only */
        }
        setTimeout(() => (button.textContent = "Copy"), 1500);
    });
    return button;
}

export const count = (n) => Math.round(n).toLocaleString("en-US");

/* Seconds with three figures and a unit: [number, unit]. */
export function duration(seconds) {
    if (seconds == null) return ["–", ""];
    if (seconds === 0) return ["0", "ms"];
    const [value, unit] = seconds < 1e-3 ? [seconds * 1e6, "µs"] : seconds < 1 ? [seconds * 1e3, "ms"] : [seconds, "s"];
    return [value < 10 ? value.toFixed(1) : String(Math.round(value)), unit];
}
