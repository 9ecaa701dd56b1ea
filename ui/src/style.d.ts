// The bundler takes style sheets.
declare module "*.css";
