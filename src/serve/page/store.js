// Conversations in IndexedDB, settings in localStorage. If the browser refuses (private window, full
// disk), the page works without them, and shows a message if a conversation is not stored.

const DATABASE = "thermocline";
const STORE = "conversations";
const SETTINGS = "thermocline-settings";
const KEY = "thermocline-api-key";

let database = null;

function openDatabase() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("another tab uses an older version of the database"));
  });
}

function completed(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error);
    transaction.onerror = () => reject(transaction.error);
  });
}

/** Opens the database and returns all conversations. */
export async function openStore() {
  database = await openDatabase();
  // A newer version of the page in another tab needs this to upgrade the database.
  database.onversionchange = () => {
    database.close();
    database = null;
  };
  const request = database.transaction(STORE).objectStore(STORE).getAll();
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** The message for the user if a conversation could not be saved. */
export function storeError(error) {
  if (error?.name === "QuotaExceededError") {
    return "The browser's storage is full. Export and delete old conversations to keep new ones.";
  }
  return "The browser does not store conversations here. Export this one to keep it.";
}

async function write(change) {
  if (!database) throw new Error("no database");
  const transaction = database.transaction(STORE, "readwrite");
  change(transaction.objectStore(STORE));
  await completed(transaction);
}

export function saveConversation(conversation) {
  return write((store) => store.put(conversation));
}

export function deleteConversation(id) {
  return write((store) => store.delete(id));
}

export function deleteAllConversations() {
  return write((store) => store.clear());
}

export function loadSettings() {
  try {
    const found = JSON.parse(localStorage.getItem(SETTINGS) ?? "{}");
    return found && typeof found === "object" ? found : {};
  } catch {
    return {};
  }
}

export function saveSettings(settings) {
  try {
    localStorage.setItem(SETTINGS, JSON.stringify(settings));
  } catch {
    // Settings then last until the page is closed.
  }
}

/** The API key is stored until the tab is closed. */
export function loadKey() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

export function saveKey(key) {
  try {
    if (key) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
  } catch {
    // The key then lasts until the page is closed.
  }
}
