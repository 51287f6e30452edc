// The search needs a worker, and browsers start none for a page that is opened from the disk: an iframe takes its place.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const inside = frame.contentDocument;
      inside.open();
      inside.write("<!doctype html><body></body>");
      inside.close();
      this.inner = frame.contentWindow;
      this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.loaded = new Promise((resolve) => {
        const script = inside.createElement("script");
        script.src = address;
        script.onload = resolve;
        inside.body.appendChild(script);
      });
    }
    postMessage(data) {
      this.loaded.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {}
  };
}
