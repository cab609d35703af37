/** In the files that the server serves, `build.js` replaces this module. */

export const importHttp = () => import("./http-part.js");
