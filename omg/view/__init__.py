"""The page in the browser: `content` reads a results folder, `server` answers, `static` holds the page itself."""
