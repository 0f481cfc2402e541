// The editor's looks, in the colours of ComfyUI's theme.

const CSS = `
.h3-mask { --h3-line: var(--border-color, #4e4e4e); display: flex; flex-direction: column; gap: 4px; width: 100%;
  height: 100%; min-height: 0; box-sizing: border-box; padding: 4px; outline: none; font: 12px/1.35 sans-serif;
  color: var(--input-text, #ddd); background: var(--comfy-menu-bg, #353535); border: 1px solid var(--h3-line);
  border-radius: 6px; user-select: none; -webkit-user-select: none; container-type: inline-size; overflow: hidden auto; }
.isLOD .lg-node-widgets .h3-mask-place { pointer-events: auto; }
.h3-mask:focus-visible, .h3-mask :focus-visible { outline: 2px solid #5b9dff; outline-offset: -2px; }
.h3-mask-bar { display: flex; flex-wrap: wrap; gap: 3px 6px; align-items: center; }
.h3-mask-group { display: flex; flex-wrap: wrap; gap: 2px; align-items: center; }
.h3-mask button, .h3-mask select, .h3-mask input[type=number] { font: inherit; color: inherit; padding: 2px 6px;
  min-height: 24px; background: var(--comfy-input-bg, #222); border: 1px solid var(--h3-line); border-radius: 4px; }
.h3-mask button { cursor: pointer; white-space: nowrap; }
.h3-mask button:hover:not(:disabled) { border-color: #5b9dff; }
.h3-mask button[aria-pressed=true] { background: #2b62b8; border-color: #5b9dff; color: #fff; font-weight: 600; }
.h3-mask button:disabled, .h3-mask input:disabled, .h3-mask select:disabled { opacity: .45; cursor: default; }
.h3-mask label { display: inline-flex; gap: 4px; align-items: center; white-space: nowrap; }
.h3-mask input[type=range] { width: 72px; accent-color: #5b9dff; }
.h3-mask input[type=number] { width: 52px; box-sizing: border-box; }
.h3-mask select { max-width: 120px; }
.h3-mask output { min-width: 34px; font-variant-numeric: tabular-nums; }
.h3-mask-view { position: relative; flex: 1 1 200px; min-height: 200px; background: #17181b; border-radius: 4px;
  overflow: hidden; }
.h3-mask-view canvas, .h3-mask-time { display: block; width: 100%; touch-action: none; }
.h3-mask-view canvas { height: 100%; cursor: crosshair; }
.h3-mask-locked { position: absolute; inset: 0; display: flex; flex-direction: column; gap: 8px; align-items: center;
  justify-content: center; padding: 16px; text-align: center; font-size: 14px; color: #e6e8ec; background: #17181bcc; }
.h3-mask-locked p { margin: 0; max-width: 420px; }
.h3-mask-time { flex: none; height: 120px; border-radius: 4px; background: #1d1f24; }
.h3-mask-where { font-variant-numeric: tabular-nums; margin-left: auto; }
.h3-mask-notice { padding: 4px 8px; border-radius: 4px; background: #6b4a12; color: #fff; }
.h3-mask-notice button, .h3-mask-locked button { background: #222; color: #fff; }
.h3-mask [hidden] { display: none !important; }
.h3-mask-foot { flex: none; display: flex; flex-direction: column; gap: 4px; }
.h3-mask-slot { height: 54px; overflow: auto; }
@container (max-width: 660px) { .h3-mask-slot { height: 82px; } }
.h3-mask-slot p { margin: 0; opacity: .75; }
.h3-mask-layers { display: flex; flex: 1 1 200px; flex-wrap: wrap; gap: 3px; height: 56px; overflow: auto; align-items: center; }
.h3-mask-layer { display: inline-flex; border: 1px solid var(--h3-line); border-radius: 4px; overflow: hidden; }
.h3-mask-layer button { border: 0; border-radius: 0; }
.h3-mask-layer[data-selected=true] { border-color: #5b9dff; box-shadow: 0 0 0 1px #5b9dff; }
.h3-mask-status { font-variant-numeric: tabular-nums; min-height: 2.7em; }
.h3-mask-caption { position: absolute; inset: 6px 4% auto; width: fit-content; margin: 0 auto; padding: 2px 8px;
  border-radius: 4px; background: #000b; color: #fff; pointer-events: none; }
.h3-mask-caption button { background: #222; color: #fff; pointer-events: auto; }
.h3-mask-long { text-decoration: underline dotted; cursor: help; }
.h3-mask-help { position: absolute; right: 6px; top: 6px; max-height: calc(100% - 28px); overflow: auto; padding: 8px 10px;
  border-radius: 4px; background: #000d; color: #fff; }
.h3-mask-carried { padding: 2px 6px; border: 1px dashed #965aff; border-radius: 4px; cursor: help; }
.h3-mask-layer[data-acts=false] { opacity: .55; }
.h3-mask-status b { font-weight: 600; }
.h3-mask-full { position: fixed; inset: 0; z-index: 3000; padding: 8px; background: var(--bg-color, #202020); }
.h3-mask-full .h3-mask { font-size: 13px; }
.h3-mask-full .h3-mask-slot, .h3-mask-full .h3-mask-layers { height: 30px; }
.h3-mask-full .h3-mask-time { height: 168px; }
.h3-mask-away { display: flex; align-items: center; justify-content: center; height: 100%; min-height: 60px;
  color: var(--input-text, #ddd); border: 1px dashed var(--border-color, #4e4e4e); border-radius: 6px; }
`;

/** Put the style on the page, once. */
export function addStyle() {
  if (document.getElementById("h3-mask-style")) return;
  const style = document.createElement("style");
  style.id = "h3-mask-style";
  style.textContent = CSS;
  document.head.append(style);
}
