function vitrailAnswer(root){
  var data=JSON.parse(root.querySelector('script[type="application/json"]').textContent);
  var spans=root.querySelectorAll('[data-column]'), units=root.querySelectorAll('.unit');
  var cited=root.querySelector('.cited');
  function show(u){
    var row=data.rows[u];
    spans.forEach(function(s){var v=row[+s.dataset.column];
      s.style.background=v>0?'rgba(178,24,43,'+(data.strongest*v).toFixed(3)+')':v<0?'rgba(33,102,172,'+(-data.strongest*v).toFixed(3)+')':'';});
    units.forEach(function(b,i){b.setAttribute('aria-pressed',String(i===u));});
    cited.replaceChildren();
    data.cited[u].forEach(function(c){var li=document.createElement('li');li.textContent=c;cited.appendChild(li);});
  }
  units.forEach(function(b,i){['mouseenter','focus','click'].forEach(function(e){b.addEventListener(e,function(){show(i);});});});
  if(units.length)show(0);
}
