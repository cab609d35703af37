/**
 * The login page. It lets an operator type a key only where no one on the way can read it: over TLS,
 * or on the machine itself. The server refuses it elsewhere, but then the key would have been sent.
 */

const isSafe = window.isSecureContext;
document.getElementById("insecure").hidden = isSafe;
for (const control of document.querySelectorAll("input, button")) control.disabled = !isSafe;
if (isSafe) document.getElementById("key").focus();
