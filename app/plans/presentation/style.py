"""The style of the presentation. `components/stage.js` sets the room and size of the map."""

STYLE = """<style>
.stApp header[data-testid="stHeader"], [data-testid="stSidebar"], [data-testid="stSidebarCollapsedControl"],
[data-testid="stExpandSidebarButton"] { display: none; }
[data-testid="stMainBlockContainer"] { padding: .7rem clamp(.9rem, 2vw, 2.2rem) .5rem; }
.stMainBlockContainer > .stVerticalBlock { gap: .55rem; }
.st-key-present-head { border-bottom: 1px solid color-mix(in srgb, currentColor 12%, transparent);
  padding-bottom: .45rem; }
.st-key-present-head h1 { font-size: 1.05rem; font-weight: 600; padding: 0; overflow-wrap: anywhere; }
.st-key-present-head button { min-height: 2.2rem; padding-block: .15rem; white-space: nowrap; }
.st-key-present-said { display: grid; gap: .4rem 1.4rem; grid-template-columns: minmax(0, 9fr) minmax(0, 11fr); }
.present-verdict { display: flex; align-items: center; gap: .9rem; height: clamp(7.4rem, 14vh, 12rem);
  padding: .4rem 1.1rem; border-radius: .6rem; border-left: 6px solid currentColor;
  background: color-mix(in srgb, currentColor 7%, transparent); }
.present-verdict p { margin: 0; font-size: clamp(1.5rem, 2.5vw, 4rem); font-weight: 650; line-height: 1.18; }
.present-verdict p[tabindex] { max-height: 100%; overflow: auto; scrollbar-width: thin; }
.present-verdict i { font-style: normal; font-size: 2rem; font-weight: 700; }
.present-verdict.green, .present-figures .gain { color: light-dark(#0b5f58, #5eead4); }
.present-verdict.amber { color: light-dark(#92400e, #fbbf24); }
.present-verdict.red, .present-figures .loss { color: light-dark(#a3241b, #ffa198); }
.present-figures { display: grid; grid-template-columns: 1.1fr 1.1fr 1fr 1.2fr; gap: .2rem 1.2rem;
  height: clamp(7.4rem, 14vh, 12rem);
  align-items: start; align-content: center; }
.present-figures div { display: grid; min-width: 0; }
.present-figures span { font-size: clamp(.95rem, 1vw, 1.5rem); line-height: 1.2; }
.present-figures b { font-size: clamp(1.9rem, 2.9vw, 3.7rem); font-weight: 650; line-height: 1.15; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.present-figures .words b { font-size: clamp(1.1rem, 1.5vw, 1.9rem); white-space: normal; line-height: 1.2;
  padding-block: .45rem .3rem; }
.present-figures b i { font-size: .6em; font-weight: 500; }
.present-figures small { font-size: clamp(.95rem, 1vw, 1.5rem); line-height: 1.25; }
.present-figures .words small { font-size: .8rem; }
.present-figures em, .present-figures i { font-style: normal; }
.present-figures em { font-weight: 600; }
.st-key-present-moved p { font-size: clamp(.95rem, 1vw, 1.5rem); min-height: 1.4em; margin: 0; white-space: nowrap;
  overflow: hidden; text-overflow: ellipsis; }
.st-key-present-map .picture, .st-key-present-map .st-key-present-reasons { height: var(--stage-room, auto);
  overflow: auto; scrollbar-width: thin; }
.st-key-present-map .picture { display: flex; flex-direction: column; }
.st-key-present-map .st-key-present-reasons { flex: none; }
.st-key-present-reasons :is(p, li) { font-size: clamp(1rem, 1.3vw, 1.5rem); }
.st-key-present-map .picture > div { margin-block: auto; }
.st-key-present-strip { border-top: 1px solid color-mix(in srgb, currentColor 12%, transparent); padding-top: .5rem; }
.st-key-present-strip .live-slider .ends { display: none; }
.st-key-present-strip .live-slider input { margin: .3rem 0 .2rem; }
.st-key-present-search { position: fixed; right: 1.2rem; bottom: 4.6rem; width: auto; }
.st-key-present-strip > [data-testid="stLayoutWrapper"]:not(:last-child) { flex: 1 1 150px; max-width: 320px; }
@media (max-width: 1199px) {
  .st-key-present-said { grid-template-columns: minmax(0, 1fr); }
  .present-verdict { height: 4.4rem; }
  .present-figures { height: 5.9rem; }
}
@media (max-width: 640px) { /* It scrolls: a map of the window's height would be too small to read. */
  .present-verdict { height: auto; min-height: 4.4rem; }
  .present-verdict p { font-size: 1.2rem; }
  .st-key-present-moved p { white-space: normal; }
  .present-figures { height: auto; grid-template-columns: 1fr 1fr; }
  .st-key-present-map .picture, .st-key-present-map .st-key-present-reasons { height: auto; overflow: visible; }
}
</style>"""
