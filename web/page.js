/* The page as a whole: tabs, theme, API key, the model's name. */
import {ask, onKeyWanted, setKey} from "./api.js";
import {startChat} from "./chat.js";
import {dashboardTheme, showDashboard} from "./dashboard.js";
import {byId} from "./dom.js";

const tabs = ["chat", "dashboard"];

function select(name, focus) {
    for (const t of tabs) {
        const on = t === name;
        byId(`tab-${t}`).setAttribute("aria-selected", String(on));
        byId(`tab-${t}`).tabIndex = on ? 0 : -1;
        byId(`view-${t}`).hidden = !on;
    }
    if (focus) byId(`tab-${name}`).focus();
    if (location.hash.slice(1) !== name) history.replaceState(null, "", name === "chat" ? location.pathname : `#${name}`);
    showDashboard(name === "dashboard");
}

function startTabs() {
    tabs.forEach((name, i) => {
        byId(`tab-${name}`).addEventListener("click", () => select(name));
        byId(`tab-${name}`).addEventListener("keydown", (e) => {
            const step = {ArrowRight: 1, ArrowLeft: -1}[e.key];
            if (step) select(tabs[(i + step + tabs.length) % tabs.length], true);
        });
    });
    window.addEventListener("hashchange", () => select(location.hash === "#dashboard" ? "dashboard" : "chat"));
    if (location.hash === "#dashboard") select("dashboard");
}

function startTheme() {
    const system = matchMedia("(prefers-color-scheme: dark)");
    const root = document.documentElement;
    byId("theme").addEventListener("click", () => {
        const now = root.dataset.theme ?? (system.matches ? "dark" : "light");
        root.dataset.theme = now === "dark" ? "light" : "dark";
        try {
            localStorage.setItem("theme", root.dataset.theme);
        } catch {
            /* storage may be forbidden; the choice then lasts as long as the page */
        }
        dashboardTheme();
    });
    system.addEventListener("change", dashboardTheme);
}

async function showModel() {
    try {
        const models = await (await ask("/v1/models")).json();
        const name = models.data?.[0]?.id ?? "";
        byId("model").textContent = name;
        byId("entry").placeholder = name ? `Message ${name}` : "Message";
    } catch {
        byId("model").textContent = ""; /* the first message will say what is wrong */
    }
}

function startKey() {
    onKeyWanted(() => {
        if (!byId("key-bar").hidden) return;
        byId("key-bar").hidden = false;
        byId("key").focus();
    });
    byId("key-bar").addEventListener("submit", (e) => {
        e.preventDefault();
        setKey(byId("key").value.trim());
        byId("key-bar").hidden = true;
        showModel();
    });
}

startTheme();
startKey();
startChat();
startTabs();
showModel();
