// The search of the site runs in a Worker, which browsers refuse to pages of the file system. There, a hidden iframe of the
// same origin takes its place: the search works from a directory, without a server and without the network.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      window.addEventListener("message", (event) => {
        if (event.source !== inside) return;
        const message = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      });
      this.loaded = new Promise((resolve) => {
        inside.document.open();
        inside.document.write("<html><body></body></html>");
        inside.document.close();
        const add = (address) =>
          new Promise((done) => {
            const script = inside.document.createElement("script");
            script.src = address;
            script.onload = done;
            inside.document.body.append(script);
          });
        inside.importScripts = (...addresses) => addresses.reduce((last, a) => last.then(() => add(a)), Promise.resolve());
        // Called inside, so that the frame is the source of the message.
        inside.eval("postMessage = (data) => parent.postMessage(data, '*')");
        add(url).then(resolve);
      });
    }
    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
